-- Version 7. What has become of attempts, when timers died, and the trace of whoever has scheduled a timer.
--
-- Workers of version 6 go on: they write no history, and leave the new columns as they are.
LOCK TABLE tickwheel_schema, tickwheel_timers;
DO $$ BEGIN
    IF (SELECT version FROM tickwheel_schema) IS DISTINCT FROM 6 THEN
        RAISE 'this file brings tables of version 6 up to date, and these are of another' USING HINT =
            'Run the files that come after the version in `tickwheel_schema`, once each in their order.';
    END IF;
END $$;

ALTER TABLE tickwheel_timers
    -- The context of a trace, such as a `traceparent`.
    ADD trace text,
    -- Since when a worker that removes what is dead knows of a dead timer. It counts as long as the fencing number is the timer's, so a
    -- timer that is brought back and dies again is dead anew, whoever has brought it back.
    ADD dead_since timestamptz,
    ADD dead_fence bigint,
    -- No row has a trace yet, so none is read for this while others wait.
    ADD CONSTRAINT "a trace has at most 1000 bytes" CHECK (octet_length(trace) <= 1000) NOT VALID;

-- Attempts of kinds with a history, from the first on. A row is put in with the outcome, and is removed when it is too old. So the
-- table is written at its end and deleted at its begin, and its dead rows are cleared before they are many.
CREATE TABLE tickwheel_history (
    kind text NOT NULL,
    key text NOT NULL,
    due timestamptz NOT NULL,
    started timestamptz NOT NULL,
    late_us bigint NOT NULL,
    took_us bigint NOT NULL,
    attempt integer NOT NULL,
    fence bigint NOT NULL,
    outcome text NOT NULL,
    error text,
    worker text NOT NULL,
    trace text,
    PRIMARY KEY (kind, started, fence)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 10000);
CREATE INDEX tickwheel_history_key ON tickwheel_history (kind, key, started);
-- Of those that are looked for among many others.
CREATE INDEX tickwheel_history_failed ON tickwheel_history (kind, started) WHERE outcome <> 'done';

-- As before, with a trace. A function cannot get another parameter, so it is a new one. A call in its text finds either.
DROP FUNCTION tickwheel_schedule(text, text, bytea, timestamptz, interval, bigint, text, integer, bigint, boolean);
DROP FUNCTION tickwheel_schedule_many(text[], text[], bytea[], timestamptz[], interval[], bigint[], text[], integer[], bigint[], boolean);
DO $do$ BEGIN EXECUTE replace($f$
CREATE FUNCTION tickwheel_schedule(kind text, key text, payload bytea DEFAULT '', at timestamptz DEFAULT NULL,
    after interval DEFAULT NULL, period_ms bigint DEFAULT NULL, rule text DEFAULT NULL, max_attempts integer DEFAULT NULL,
    time_limit_ms bigint DEFAULT NULL, keep boolean DEFAULT false, trace text DEFAULT NULL)
RETURNS TABLE (due timestamptz, replaced boolean) ROWS 1
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    IF $1 IS NULL OR $2 IS NULL OR $6 IS NOT NULL AND $7 IS NOT NULL THEN PERFORM @extschema@.tickwheel_refuse_new($1, $2); END IF;
    IF $10 THEN
        RETURN QUERY INSERT INTO @extschema@.tickwheel_timers AS t
            (kind, key, payload, due, period_ms, rule, max_attempts, time_limit_ms, trace)
        VALUES ($1, $2, coalesce($3, ''), @extschema@.tickwheel_due($4, $5), $6, $7, $8, $9, $11)
        ON CONFLICT (kind, key) DO NOTHING RETURNING t.due, false;
    ELSE
        RETURN QUERY INSERT INTO @extschema@.tickwheel_timers AS t
            (kind, key, payload, due, period_ms, rule, max_attempts, time_limit_ms, trace)
        VALUES ($1, $2, coalesce($3, ''), @extschema@.tickwheel_due($4, $5), $6, $7, $8, $9, $11)
        ON CONFLICT (kind, key) DO UPDATE SET payload = excluded.payload, due = excluded.due, period_ms = excluded.period_ms,
            rule = excluded.rule, max_attempts = excluded.max_attempts, time_limit_ms = excluded.time_limit_ms, trace = excluded.trace,
            state = 'waiting', attempts = 0, fence = 0, held_until = NULL, owner = NULL, error = NULL
        RETURNING t.due, t.xmax::text <> '0';
    END IF;
END $$;
$f$, '@extschema@', quote_ident(current_schema())); END $do$;

CREATE FUNCTION tickwheel_schedule_many(kinds text[], keys text[], payloads bytea[] DEFAULT NULL, at timestamptz[] DEFAULT NULL,
    after interval[] DEFAULT NULL, period_ms bigint[] DEFAULT NULL, rules text[] DEFAULT NULL, max_attempts integer[] DEFAULT NULL,
    time_limit_ms bigint[] DEFAULT NULL, keep boolean DEFAULT false, traces text[] DEFAULT NULL)
RETURNS TABLE (kind text, key text, due timestamptz, replaced boolean)
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
#variable_conflict use_column
BEGIN
    IF cardinality($1) <> ANY (ARRAY[cardinality($2), cardinality($3), cardinality($4), cardinality($5), cardinality($6),
        cardinality($7), cardinality($8), cardinality($9), cardinality($11)]) THEN
        RAISE 'the lists have different lengths' USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Give lists with an element for each timer, or NULL for a list of defaults.';
    END IF;
    PERFORM tickwheel_refuse_new(n.kind, n.key) FROM unnest($1, $2, $6, $7) AS n (kind, key, period_ms, rule)
    WHERE n.kind IS NULL OR n.key IS NULL OR n.period_ms IS NOT NULL AND n.rule IS NOT NULL;
    IF $10 THEN
        RETURN QUERY INSERT INTO tickwheel_timers AS t
            (kind, key, payload, due, period_ms, rule, max_attempts, time_limit_ms, trace)
        SELECT DISTINCT ON (n.kind COLLATE "C", n.key COLLATE "C") n.kind, n.key, coalesce(n.payload, ''),
            tickwheel_due(n.at, n.after), n.period_ms, n.rule, n.max_attempts, n.time_limit_ms, n.trace
        FROM unnest($1, $2, $3, $4, $5, $6, $7, $8, $9, $11) WITH ORDINALITY
            AS n (kind, key, payload, at, after, period_ms, rule, max_attempts, time_limit_ms, trace, place)
        ORDER BY n.kind COLLATE "C", n.key COLLATE "C", n.place
        ON CONFLICT (kind, key) DO NOTHING RETURNING t.kind, t.key, t.due, false;
    ELSE
        RETURN QUERY INSERT INTO tickwheel_timers AS t
            (kind, key, payload, due, period_ms, rule, max_attempts, time_limit_ms, trace)
        SELECT DISTINCT ON (n.kind COLLATE "C", n.key COLLATE "C") n.kind, n.key, coalesce(n.payload, ''),
            tickwheel_due(n.at, n.after), n.period_ms, n.rule, n.max_attempts, n.time_limit_ms, n.trace
        FROM unnest($1, $2, $3, $4, $5, $6, $7, $8, $9, $11) WITH ORDINALITY
            AS n (kind, key, payload, at, after, period_ms, rule, max_attempts, time_limit_ms, trace, place)
        ORDER BY n.kind COLLATE "C", n.key COLLATE "C", n.place DESC
        ON CONFLICT (kind, key) DO UPDATE SET payload = excluded.payload, due = excluded.due, period_ms = excluded.period_ms,
            rule = excluded.rule, max_attempts = excluded.max_attempts, time_limit_ms = excluded.time_limit_ms, trace = excluded.trace,
            state = 'waiting', attempts = 0, fence = 0, held_until = NULL, owner = NULL, error = NULL
        RETURNING t.kind, t.key, t.due, t.xmax::text <> '0';
    END IF;
END $$;

-- As before, but a series with a rule that is moved to a time that has passed is due now: its rule may leave out a run that is late.
CREATE OR REPLACE FUNCTION tickwheel_reset(kind text, key text, at timestamptz DEFAULT NULL, after interval DEFAULT NULL)
RETURNS timestamptz LANGUAGE plpgsql SET search_path FROM CURRENT SET plan_cache_mode TO force_custom_plan AS $$
#variable_conflict use_column
DECLARE moved timestamptz;
BEGIN
    UPDATE tickwheel_timers t SET held_until = NULL, attempts = 0, error = NULL,
        due = CASE WHEN t.rule IS NULL THEN tickwheel_due($3, $4) ELSE greatest(tickwheel_due($3, $4), tickwheel_now()) END
    WHERE t.kind = $1 COLLATE "default" AND t.key = $2 COLLATE "default" AND t.state = 'waiting' RETURNING t.due INTO moved;
    RETURN moved;
END $$;

UPDATE tickwheel_schema SET version = 7;
