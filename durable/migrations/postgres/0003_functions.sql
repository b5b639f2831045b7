-- Version 3. Functions for all clients and languages, and statements that would not do what they say are refused.
--
-- The search path is kept with each function, so a function finds the tables wherever it is called from. Sequential reads are
-- off in them, because the server would go on with a plan that it made when the table was small.
--
-- The locks are taken at once, in the order in which workers take theirs. A transaction that took a weak one first, and a
-- strong one later, would wait in a circle with a worker that does the same.
LOCK TABLE tickwheel_schema, tickwheel_timers;

-- Both times, or one that is no time, are refused. All others are kept in the range of the table.
CREATE FUNCTION tickwheel_refuse_due(at timestamptz, after interval) RETURNS timestamptz LANGUAGE plpgsql AS $$
BEGIN
    IF at IS NOT NULL AND after IS NOT NULL THEN
        RAISE 'a timer is due at a time or after an interval, and this one has both' USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Give `at` or `after`, or neither if it is due now.';
    END IF;
    RAISE 'a timer cannot be due at %', coalesce(at::text, after::text) USING ERRCODE = 'invalid_parameter_value',
        HINT = 'Give a time that comes. To keep a timer from running, cancel it.';
END $$;
CREATE FUNCTION tickwheel_due(at timestamptz, after interval) RETURNS timestamptz LANGUAGE sql VOLATILE AS $$
    SELECT CASE
        WHEN at IS NULL AND isfinite(tickwheel_now() + coalesce(after, interval '0'))
            THEN greatest(least(tickwheel_now() + coalesce(after, interval '0'), '9998-12-31 23:59:59.999999Z'), '1970-01-01 00:00Z')
        WHEN after IS NULL AND isfinite(at) THEN greatest(least(at, '9998-12-31 23:59:59.999999Z'), '1970-01-01 00:00Z')
        ELSE tickwheel_refuse_due(at, after) END
$$;

-- Schedules a timer. One of this kind and key that is there is replaced, even if it runs; with `keep` it stays as it is, and no
-- row is returned. A timer that is to be an error if it is there is put in with a plain INSERT.
CREATE FUNCTION tickwheel_schedule(kind text, key text, payload bytea DEFAULT '', at timestamptz DEFAULT NULL,
    after interval DEFAULT NULL, period_ms bigint DEFAULT NULL, rule text DEFAULT NULL, max_attempts integer DEFAULT NULL,
    time_limit_ms bigint DEFAULT NULL, keep boolean DEFAULT false)
RETURNS TABLE (due timestamptz, replaced boolean) ROWS 1
LANGUAGE plpgsql SET search_path FROM CURRENT SET enable_seqscan TO off AS $$
#variable_conflict use_column
BEGIN
    IF $10 THEN
        RETURN QUERY INSERT INTO tickwheel_timers AS t
            (kind, key, payload, due, period_ms, rule, max_attempts, time_limit_ms)
        VALUES ($1, $2, coalesce($3, ''), tickwheel_due($4, $5), $6, $7, $8, $9)
        ON CONFLICT (kind, key) DO NOTHING RETURNING t.due, false;
    ELSE
        RETURN QUERY INSERT INTO tickwheel_timers AS t
            (kind, key, payload, due, period_ms, rule, max_attempts, time_limit_ms)
        VALUES ($1, $2, coalesce($3, ''), tickwheel_due($4, $5), $6, $7, $8, $9)
        ON CONFLICT (kind, key) DO UPDATE SET payload = excluded.payload, due = excluded.due, period_ms = excluded.period_ms,
            rule = excluded.rule, max_attempts = excluded.max_attempts, time_limit_ms = excluded.time_limit_ms,
            state = 'waiting', attempts = 0, fence = 0, held_until = NULL, owner = NULL, error = NULL
        RETURNING t.due, t.xmax::text <> '0';
    END IF;
END $$;

-- Schedules many, which costs a fraction of a call for each. All lists are as long as the first, or NULL, which means the
-- default for all. Of several with the same kind and key the last one counts, or with `keep` the first. Returns a row for each
-- timer that was put in.
CREATE FUNCTION tickwheel_schedule_many(kinds text[], keys text[], payloads bytea[] DEFAULT NULL, at timestamptz[] DEFAULT NULL,
    after interval[] DEFAULT NULL, period_ms bigint[] DEFAULT NULL, rules text[] DEFAULT NULL, max_attempts integer[] DEFAULT NULL,
    time_limit_ms bigint[] DEFAULT NULL, keep boolean DEFAULT false)
RETURNS TABLE (kind text, key text, due timestamptz, replaced boolean)
LANGUAGE plpgsql SET search_path FROM CURRENT SET enable_seqscan TO off AS $$
#variable_conflict use_column
BEGIN
    IF cardinality($1) <> ANY (ARRAY[cardinality($2), cardinality($3), cardinality($4), cardinality($5), cardinality($6),
        cardinality($7), cardinality($8), cardinality($9)]) THEN
        RAISE 'the lists have different lengths' USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Give lists with an element for each timer, or NULL for a list of defaults.';
    END IF;
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
        -- Those that are there are locked in the order of their numbers before any is changed, and the others are put in in the
        -- order of their names. So calls at the same time do not wait for each other in a circle.
        PERFORM FROM tickwheel_timers t JOIN unnest($1, $2) AS n (kind, key) ON t.kind = n.kind AND t.key = n.key
        ORDER BY t.id FOR UPDATE OF t;
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
RETURNS timestamptz LANGUAGE plpgsql SET search_path FROM CURRENT SET enable_seqscan TO off AS $$
#variable_conflict use_column
DECLARE moved timestamptz;
BEGIN
    UPDATE tickwheel_timers t SET held_until = NULL, attempts = 0, error = NULL, due = tickwheel_due($3, $4)
    WHERE t.kind = $1 AND t.key = $2 AND t.state = 'waiting' RETURNING t.due INTO moved;
    RETURN moved;
END $$;

-- Removes a timer, and returns the state that it was in. NULL: it is not there. If it was running, its run goes on, and nothing
-- follows it.
CREATE FUNCTION tickwheel_cancel(kind text, key text) RETURNS text
LANGUAGE plpgsql SET search_path FROM CURRENT SET enable_seqscan TO off AS $$
#variable_conflict use_column
DECLARE before text;
BEGIN
    DELETE FROM tickwheel_timers t WHERE t.kind = $1 AND t.key = $2 RETURNING t.state INTO before;
    RETURN before;
END $$;

-- Returns a timer, or no row.
CREATE FUNCTION tickwheel_get(kind text, key text) RETURNS SETOF tickwheel_timers ROWS 1
LANGUAGE plpgsql STABLE SET search_path FROM CURRENT SET enable_seqscan TO off AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY SELECT t.* FROM tickwheel_timers t WHERE t.kind = $1 AND t.key = $2;
END $$;

-- Makes dead timers wait again, with all their attempts before them: the one of this key, or all of this kind. Returns how many.
CREATE FUNCTION tickwheel_requeue(kind text, key text DEFAULT NULL, at timestamptz DEFAULT NULL, after interval DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE count bigint;
BEGIN
    WITH dead AS (
        SELECT t.id FROM tickwheel_timers t
        WHERE t.kind = $1 AND ($2 IS NULL OR t.key = $2) AND t.state = 'dead' ORDER BY t.id FOR UPDATE)
    UPDATE tickwheel_timers t SET state = 'waiting', held_until = NULL, attempts = 0, due = tickwheel_due($3, $4)
    FROM dead WHERE t.id = dead.id;
    GET DIAGNOSTICS count = ROW_COUNT;
    RETURN count;
END $$;

-- Refuses a row that is no timer, and a change that would be lost. The triggers decide, so this is called for those alone.
CREATE FUNCTION tickwheel_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    problem text;
    advice text;
BEGIN
    IF NEW.kind IS NULL OR octet_length(NEW.kind) NOT BETWEEN 1 AND 200 THEN
        problem := format('a kind has 1 to 200 bytes, and this one has %s', coalesce(octet_length(NEW.kind), 0));
        advice := 'The kind names the handler of the timer.';
    ELSIF NEW.key IS NULL OR octet_length(NEW.key) > 1000 THEN
        problem := format('a key has at most 1000 bytes, and this one %s',
            coalesce('has ' || octet_length(NEW.key), 'is NULL'));
        advice := 'Take the number of an order, say, and put the rest into the payload.';
    ELSIF NEW.due IS NULL OR NEW.due NOT BETWEEN '1970-01-01 00:00Z' AND '9998-12-31 23:59:59.999999Z' THEN
        problem := format('it is due between the years 1970 and 9998, and not at %s', coalesce(NEW.due::text, 'NULL'));
        advice := 'Give a time that comes. To keep a timer from running, cancel it.';
    ELSIF NEW.period_ms < 1 THEN
        problem := 'the period is shorter than a millisecond';
        advice := 'Give 1 or more, or NULL for a timer that does not repeat.';
    ELSIF NEW.max_attempts < 1 THEN
        problem := format('`max_attempts` is %s, so it would never run', NEW.max_attempts);
        advice := 'Give 1 or more, or NULL for what its handler says.';
    ELSIF NEW.time_limit_ms < 1 THEN
        problem := 'the time limit is shorter than a millisecond';
        advice := 'Give 1 or more, or NULL for what its worker says.';
    ELSIF TG_OP = 'INSERT' THEN
        problem := 'it has both a period and a rule';
        advice := 'Give `period_ms` or `rule`.';
    ELSIF NEW.state = 'dead' THEN
        problem := 'it is dead, and a dead timer that is moved stays dead';
        advice := 'Call `tickwheel_requeue`, or add `AND state = ''waiting''` to the statement.';
    ELSE
        problem := 'a worker runs it, and the change would be lost with the end of the run';
        advice := 'Replace it with `tickwheel_schedule`, or add `AND state = ''waiting''` to the statement.';
    END IF;
    RAISE 'the timer "%" "%": %', left(NEW.kind, 200), left(NEW.key, 200), problem
        USING ERRCODE = 'check_violation', HINT = advice;
END $$;
CREATE TRIGGER tickwheel_timers_new_checked BEFORE INSERT ON tickwheel_timers FOR EACH ROW
    WHEN (NEW.kind IS NULL OR octet_length(NEW.kind) NOT BETWEEN 1 AND 200 OR NEW.key IS NULL OR octet_length(NEW.key) > 1000
        OR NEW.due IS NULL OR NEW.due NOT BETWEEN '1970-01-01 00:00Z' AND '9998-12-31 23:59:59.999999Z' OR NEW.period_ms < 1
        OR NEW.max_attempts < 1 OR NEW.time_limit_ms < 1 OR (NEW.period_ms IS NOT NULL AND NEW.rule IS NOT NULL))
    EXECUTE FUNCTION tickwheel_refuse();
CREATE TRIGGER tickwheel_timers_change_checked
    BEFORE UPDATE OF kind, key, payload, due, period_ms, max_attempts, time_limit_ms ON tickwheel_timers FOR EACH ROW
    WHEN (NEW.kind IS NULL OR octet_length(NEW.kind) NOT BETWEEN 1 AND 200 OR NEW.key IS NULL OR octet_length(NEW.key) > 1000
        OR NEW.due IS NULL OR NEW.due NOT BETWEEN '1970-01-01 00:00Z' AND '9998-12-31 23:59:59.999999Z' OR NEW.period_ms < 1
        OR NEW.max_attempts < 1 OR NEW.time_limit_ms < 1
        OR (OLD.state = 'dead' AND NEW.state = 'dead' AND NEW.due <> OLD.due)
        OR (OLD.state = 'running' AND NEW.state = 'running' AND (NEW.due <> OLD.due OR NEW.payload <> OLD.payload)))
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
