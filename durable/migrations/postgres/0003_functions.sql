-- Version 3. Functions for all clients and languages, and statements that would not do what they say are refused.
--
-- The search path is kept with each function, so a function finds the tables wherever it is called from. To set it for a call
-- costs some ten microseconds, so those that are called most have the name of the schema in their texts instead. Where a row is looked
-- for, the server plans anew, because it would go on with a plan that it made when the table was small. The texts that are
-- compared get the collation of the table's columns, because an index does not serve another one.
--
-- The locks are taken at once, in the order in which workers take theirs. A transaction that took a weak one first, and a
-- strong one later, would wait in a circle with a worker that does the same.
LOCK TABLE tickwheel_schema, tickwheel_timers;
DO $$ BEGIN
    IF (SELECT version FROM tickwheel_schema) IS DISTINCT FROM 2 THEN
        RAISE 'this file brings tables of version 2 up to date, and these are of another' USING HINT =
            'Run the files that come after the version in `tickwheel_schema`, once each in their order.';
    END IF;
END $$;

-- Both times, or one that is no time, are refused. All others are kept in the range of the table, and an interval in one that
-- the server can add to a time of today.
CREATE FUNCTION tickwheel_refuse_due(at timestamptz, after interval) RETURNS timestamptz LANGUAGE plpgsql AS $$
BEGIN
    IF at IS NOT NULL AND after IS NOT NULL THEN
        RAISE 'a timer is due at a time or after an interval, and this one has both' USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Give `at` or `after`, or neither if it is due now.';
    END IF;
    RAISE 'a timer cannot be due at %', coalesce(at::text, after::text) USING ERRCODE = 'invalid_parameter_value',
        HINT = 'Give a time that comes. To keep a timer from running, cancel it.';
END $$;
DO $do$ BEGIN EXECUTE replace($f$
CREATE FUNCTION tickwheel_due(at timestamptz, after interval) RETURNS timestamptz LANGUAGE sql VOLATILE AS $$
    SELECT CASE
        WHEN at IS NULL AND isfinite(coalesce(after, interval '0')) THEN greatest(least(@extschema@.tickwheel_now()
            + greatest(least(coalesce(after, interval '0'), '9999 years'), '-3000 years'), '9998-12-31 23:59:59.999999Z'), '1970-01-01 00:00Z')
        WHEN after IS NULL AND isfinite(at) THEN greatest(least(at, '9998-12-31 23:59:59.999999Z'), '1970-01-01 00:00Z')
        ELSE @extschema@.tickwheel_refuse_due(at, after) END
$$;
$f$, '@extschema@', quote_ident(current_schema())); END $do$;
CREATE FUNCTION tickwheel_refuse_new(kind text, key text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF kind IS NULL OR key IS NULL THEN
        RAISE 'a timer has a kind and a key, and null value in column "%" is none', CASE WHEN kind IS NULL THEN 'kind' ELSE 'key' END
            USING ERRCODE = 'not_null_violation', HINT = 'Give both. A key may be the empty text.';
    END IF;
    RAISE 'a timer repeats by a period or by a rule, and this one has both' USING ERRCODE = 'invalid_parameter_value',
        HINT = 'Give `period_ms` or `rule`.';
END $$;

-- Schedules a timer. One of this kind and key that is there is replaced, even if it runs; with `keep` it stays as it is, and no
-- row is returned. A timer that is to be an error if it is there is put in with a plain INSERT.
DO $do$ BEGIN EXECUTE replace($f$
CREATE FUNCTION tickwheel_schedule(kind text, key text, payload bytea DEFAULT '', at timestamptz DEFAULT NULL,
    after interval DEFAULT NULL, period_ms bigint DEFAULT NULL, rule text DEFAULT NULL, max_attempts integer DEFAULT NULL,
    time_limit_ms bigint DEFAULT NULL, keep boolean DEFAULT false)
RETURNS TABLE (due timestamptz, replaced boolean) ROWS 1
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    IF $1 IS NULL OR $2 IS NULL OR $6 IS NOT NULL AND $7 IS NOT NULL THEN PERFORM @extschema@.tickwheel_refuse_new($1, $2); END IF;
    IF $10 THEN
        RETURN QUERY INSERT INTO @extschema@.tickwheel_timers AS t
            (kind, key, payload, due, period_ms, rule, max_attempts, time_limit_ms)
        VALUES ($1, $2, coalesce($3, ''), @extschema@.tickwheel_due($4, $5), $6, $7, $8, $9)
        ON CONFLICT (kind, key) DO NOTHING RETURNING t.due, false;
    ELSE
        RETURN QUERY INSERT INTO @extschema@.tickwheel_timers AS t
            (kind, key, payload, due, period_ms, rule, max_attempts, time_limit_ms)
        VALUES ($1, $2, coalesce($3, ''), @extschema@.tickwheel_due($4, $5), $6, $7, $8, $9)
        ON CONFLICT (kind, key) DO UPDATE SET payload = excluded.payload, due = excluded.due, period_ms = excluded.period_ms,
            rule = excluded.rule, max_attempts = excluded.max_attempts, time_limit_ms = excluded.time_limit_ms,
            state = 'waiting', attempts = 0, fence = 0, held_until = NULL, owner = NULL, error = NULL
        RETURNING t.due, t.xmax::text <> '0';
    END IF;
END $$;
$f$, '@extschema@', quote_ident(current_schema())); END $do$;

-- Schedules many, which costs a fraction of a call for each. All lists are as long as the first, or NULL, which means the
-- default for all. Of several with the same kind and key the last one counts, or with `keep` the first. Returns a row for each
-- timer that was put in. They are put in, and locked, in the order of their names (PG-2).
CREATE FUNCTION tickwheel_schedule_many(kinds text[], keys text[], payloads bytea[] DEFAULT NULL, at timestamptz[] DEFAULT NULL,
    after interval[] DEFAULT NULL, period_ms bigint[] DEFAULT NULL, rules text[] DEFAULT NULL, max_attempts integer[] DEFAULT NULL,
    time_limit_ms bigint[] DEFAULT NULL, keep boolean DEFAULT false)
RETURNS TABLE (kind text, key text, due timestamptz, replaced boolean)
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
#variable_conflict use_column
BEGIN
    IF cardinality($1) <> ANY (ARRAY[cardinality($2), cardinality($3), cardinality($4), cardinality($5), cardinality($6),
        cardinality($7), cardinality($8), cardinality($9)]) THEN
        RAISE 'the lists have different lengths' USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Give lists with an element for each timer, or NULL for a list of defaults.';
    END IF;
    PERFORM tickwheel_refuse_new(n.kind, n.key) FROM unnest($1, $2, $6, $7) AS n (kind, key, period_ms, rule)
    WHERE n.kind IS NULL OR n.key IS NULL OR n.period_ms IS NOT NULL AND n.rule IS NOT NULL;
    IF $10 THEN
        RETURN QUERY INSERT INTO tickwheel_timers AS t
            (kind, key, payload, due, period_ms, rule, max_attempts, time_limit_ms)
        SELECT DISTINCT ON (n.kind COLLATE "C", n.key COLLATE "C") n.kind, n.key, coalesce(n.payload, ''),
            tickwheel_due(n.at, n.after), n.period_ms, n.rule, n.max_attempts, n.time_limit_ms
        FROM unnest($1, $2, $3, $4, $5, $6, $7, $8, $9) WITH ORDINALITY
            AS n (kind, key, payload, at, after, period_ms, rule, max_attempts, time_limit_ms, place)
        ORDER BY n.kind COLLATE "C", n.key COLLATE "C", n.place
        ON CONFLICT (kind, key) DO NOTHING RETURNING t.kind, t.key, t.due, false;
    ELSE
        RETURN QUERY INSERT INTO tickwheel_timers AS t
            (kind, key, payload, due, period_ms, rule, max_attempts, time_limit_ms)
        SELECT DISTINCT ON (n.kind COLLATE "C", n.key COLLATE "C") n.kind, n.key, coalesce(n.payload, ''),
            tickwheel_due(n.at, n.after), n.period_ms, n.rule, n.max_attempts, n.time_limit_ms
        FROM unnest($1, $2, $3, $4, $5, $6, $7, $8, $9) WITH ORDINALITY
            AS n (kind, key, payload, at, after, period_ms, rule, max_attempts, time_limit_ms, place)
        ORDER BY n.kind COLLATE "C", n.key COLLATE "C", n.place DESC
        ON CONFLICT (kind, key) DO UPDATE SET payload = excluded.payload, due = excluded.due, period_ms = excluded.period_ms,
            rule = excluded.rule, max_attempts = excluded.max_attempts, time_limit_ms = excluded.time_limit_ms,
            state = 'waiting', attempts = 0, fence = 0, held_until = NULL, owner = NULL, error = NULL
        RETURNING t.kind, t.key, t.due, t.xmax::text <> '0';
    END IF;
END $$;

-- Moves a timer that waits, and returns its new due time. NULL: there is none that waits. One that waits for another attempt
-- begins anew.
CREATE FUNCTION tickwheel_reset(kind text, key text, at timestamptz DEFAULT NULL, after interval DEFAULT NULL)
RETURNS timestamptz LANGUAGE plpgsql SET search_path FROM CURRENT SET plan_cache_mode TO force_custom_plan AS $$
#variable_conflict use_column
DECLARE moved timestamptz;
BEGIN
    UPDATE tickwheel_timers t SET held_until = NULL, attempts = 0, error = NULL, due = tickwheel_due($3, $4)
    WHERE t.kind = $1 COLLATE "default" AND t.key = $2 COLLATE "default" AND t.state = 'waiting' RETURNING t.due INTO moved;
    RETURN moved;
END $$;

-- Removes a timer, and returns the state that it was in. NULL: it is not there. If it was running, its run goes on, and nothing
-- follows it.
CREATE FUNCTION tickwheel_cancel(kind text, key text) RETURNS text
LANGUAGE plpgsql SET search_path FROM CURRENT SET plan_cache_mode TO force_custom_plan AS $$
#variable_conflict use_column
DECLARE before text;
BEGIN
    DELETE FROM tickwheel_timers t WHERE t.kind = $1 COLLATE "default" AND t.key = $2 COLLATE "default" RETURNING t.state INTO before;
    RETURN before;
END $$;

-- Returns a timer, or no row.
CREATE FUNCTION tickwheel_get(kind text, key text) RETURNS SETOF tickwheel_timers ROWS 1
LANGUAGE plpgsql STABLE SET search_path FROM CURRENT SET plan_cache_mode TO force_custom_plan AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY SELECT t.* FROM tickwheel_timers t WHERE t.kind = $1 COLLATE "default" AND t.key = $2 COLLATE "default";
END $$;

-- Makes dead timers wait again, with all their attempts before them: the one of this key, or all of this kind. Returns how many.
-- What is dead wakes never, so the index finds it among many timers that wait.
CREATE FUNCTION tickwheel_requeue(kind text, key text DEFAULT NULL, at timestamptz DEFAULT NULL, after interval DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql SET search_path FROM CURRENT SET plan_cache_mode TO force_custom_plan AS $$
#variable_conflict use_column
DECLARE count bigint;
BEGIN
    WITH dead AS (
        SELECT t.id FROM tickwheel_timers t
        WHERE t.kind = $1 COLLATE "default" AND ($2 IS NULL OR t.key = $2 COLLATE "default") AND t.state = 'dead'
            AND t.wake = 'infinity'
        ORDER BY t.key COLLATE "C" FOR UPDATE)
    UPDATE tickwheel_timers t SET state = 'waiting', held_until = NULL, attempts = 0, due = tickwheel_due($3, $4)
    FROM dead WHERE t.id = dead.id;
    GET DIAGNOSTICS count = ROW_COUNT;
    RETURN count;
END $$;

-- Refuses the end of a run that is not there to be ended. The code is for handlers, which may tell it from other errors.
CREATE FUNCTION tickwheel_refuse_completion() RETURNS integer LANGUAGE plpgsql AS $$
BEGIN
    RAISE 'this run is complete already, or it is not this worker''s any more' USING ERRCODE = 'TW001',
        HINT = 'Execute the statement once, and roll the transaction back.';
END $$;

-- The name of a constraint is in the message about a row that breaks it.
ALTER TABLE tickwheel_timers RENAME CONSTRAINT tickwheel_timers_kind_check TO "a kind has 1 to 200 bytes";
ALTER TABLE tickwheel_timers RENAME CONSTRAINT tickwheel_timers_key_check TO "a key has at most 1000 bytes";
ALTER TABLE tickwheel_timers RENAME CONSTRAINT tickwheel_timers_due_check TO "a timer is due between the years 1970 and 9998";
ALTER TABLE tickwheel_timers RENAME CONSTRAINT tickwheel_timers_period_ms_check TO "period_ms is 1 or more, or NULL";
ALTER TABLE tickwheel_timers RENAME CONSTRAINT tickwheel_timers_max_attempts_check TO "max_attempts is 1 or more, or NULL";
ALTER TABLE tickwheel_timers RENAME CONSTRAINT tickwheel_timers_time_limit_ms_check TO "time_limit_ms is 1 or more, or NULL";

-- Refuses a change that would be lost.
CREATE FUNCTION tickwheel_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.state = 'dead' THEN
        RAISE 'the timer "%" "%" is dead, and a dead timer that is moved stays dead', NEW.kind, NEW.key
            USING ERRCODE = 'check_violation',
            HINT = 'Call `tickwheel_requeue`, or add `AND state = ''waiting''` to the statement.';
    END IF;
    RAISE 'a worker runs the timer "%" "%", and the change would be lost with the end of the run', NEW.kind, NEW.key
        USING ERRCODE = 'check_violation',
        HINT = 'Replace it with `tickwheel_schedule`, or add `AND state = ''waiting''` to the statement.';
END $$;
CREATE TRIGGER tickwheel_timers_checked BEFORE UPDATE OF payload, due ON tickwheel_timers FOR EACH ROW
    WHEN (NEW.state = OLD.state AND (OLD.state = 'dead' AND NEW.due <> OLD.due
        OR OLD.state = 'running' AND (NEW.due <> OLD.due OR NEW.payload <> OLD.payload)))
    EXECUTE FUNCTION tickwheel_refuse();

-- A dead timer that is set to waiting by hand wakes at its due time, with all its attempts before it.
DROP TRIGGER tickwheel_timers_anew ON tickwheel_timers;
CREATE TRIGGER tickwheel_timers_anew BEFORE UPDATE OF due, state ON tickwheel_timers FOR EACH ROW
    WHEN (NEW.state = 'waiting' AND OLD.held_until IS NOT NULL AND NEW.held_until = OLD.held_until
        AND (OLD.state = 'waiting' AND NEW.due <> OLD.due OR OLD.state = 'dead'))
    EXECUTE FUNCTION tickwheel_begin_anew();
-- The workers of a new kind, and of what was dead, are told too.
DROP TRIGGER tickwheel_timers_moved ON tickwheel_timers;
CREATE TRIGGER tickwheel_timers_moved AFTER UPDATE OF due, state, kind ON tickwheel_timers FOR EACH ROW
    WHEN (NEW.state = 'waiting' AND (OLD.state <> 'running' OR NEW.fence <> OLD.fence))
    EXECUTE FUNCTION tickwheel_tell_of_moved();
DROP TRIGGER tickwheel_timers_moved_late ON tickwheel_timers;
CREATE CONSTRAINT TRIGGER tickwheel_timers_moved_late AFTER UPDATE OF due, state, kind ON tickwheel_timers
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (NEW.state = 'waiting' AND OLD.state <> 'running' AND NEW.wake >= tickwheel_now() + interval '150 seconds')
    EXECUTE FUNCTION tickwheel_tell_late();

UPDATE tickwheel_schema SET version = 3;
