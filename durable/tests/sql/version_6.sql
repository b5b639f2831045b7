-- The statements of version 6, as a worker and a caller of that version send them. Of a call, what the caller leaves out is NULL.
-- statement schedule
SELECT due, replaced FROM tickwheel_schedule($1, $2, $3, NULL::timestamptz, NULL::interval, NULL::bigint, NULL::text, NULL::integer,
    NULL::bigint, $4)
-- statement schedule many
SELECT due, replaced, kind, key FROM tickwheel_schedule_many($1, $2, $3, NULL::timestamptz[], NULL::interval[], NULL::bigint[],
    NULL::text[], NULL::integer[], NULL::bigint[], $4)
-- statement get
SELECT id, kind, key, payload, due, nullif(wake, 'infinity') AS wakes, period_ms, rule, max_attempts, time_limit_ms, state, attempts,
    fence, owner, error FROM tickwheel_get($1, $2)
-- statement claim
WITH clock AS MATERIALIZED (SELECT tickwheel_now() AS now, oldest FROM tickwheel_schema),
due AS (
    SELECT id, wake, state, octet_length(payload) AS bytes FROM tickwheel_timers
    WHERE kind = $1 AND wake <= (SELECT now FROM clock) AND (SELECT oldest FROM clock) <= $5
        AND (wake, id) > (coalesce($7::timestamptz, '-infinity'), coalesce($8::bigint, 0))
    ORDER BY wake, id LIMIT $2 FOR UPDATE SKIP LOCKED),
ranked AS (
    SELECT due.*, row_number() OVER in_order AS rank, bool_or(state = 'running') OVER in_order AS is_suspected,
        sum(due.bytes) OVER in_order AS all_bytes
    FROM due WINDOW in_order AS (ORDER BY wake, id)),
chosen AS (SELECT * FROM ranked WHERE rank = 1 OR NOT is_suspected AND all_bytes <= $6),
counted AS (
    SELECT (SELECT count(*) FROM due) AS due, (SELECT count(*) FROM chosen) AS chosen),
taken AS (
    UPDATE tickwheel_timers t SET
        state = 'running',
        fence = nextval('tickwheel_fence') * 1048576 + floor(random() * 1048576)::bigint,
        owner = $3,
        held_until = tickwheel_now() + $4::float8 * interval '1 millisecond',
        error = CASE WHEN chosen.state = 'running' THEN 'the lease of worker ' || coalesce(t.owner, 'unknown')
            || ' ended: it died, hung, or lost the database' ELSE t.error END
    FROM chosen WHERE t.id = chosen.id
    RETURNING t.id, t.kind, t.key, t.payload, t.due, nullif(t.wake, 'infinity') AS wakes, t.period_ms, t.rule, t.max_attempts,
        t.time_limit_ms, t.state, t.attempts, t.fence, t.owner, t.error, chosen.wake AS woke, chosen.state AS before)
SELECT clock.now, clock.oldest, counted.chosen < counted.due OR counted.due = $2 AS more, taken.*
FROM clock CROSS JOIN counted LEFT JOIN taken ON true ORDER BY taken.woke, taken.id
-- statement claim within limits
SELECT c.clock, schema.oldest, c.more, t.id, t.kind, t.key, t.payload, t.due, nullif(t.wake, 'infinity') AS wakes, t.period_ms, t.rule,
    t.max_attempts, t.time_limit_ms, t.state, t.attempts, t.fence, t.owner, t.error, w.woke, w.before
FROM tickwheel_schema schema CROSS JOIN tickwheel_claim($1, $2, $3, $4::float8 * interval '1 millisecond', 16777216::bigint,
    NULL::timestamptz, NULL::bigint, 1000, NULL::integer, NULL::interval, NULL::text, ARRAY[]::text[], 1000, interval '100 ms', $5) c
LEFT JOIN LATERAL unnest(c.ids, c.wakes, c.befores) AS w (id, woke, before) ON true
LEFT JOIN LATERAL unnest(c.timers) t ON t.id = w.id ORDER BY w.woke, w.id
-- statement let go
DELETE FROM tickwheel_holds WHERE fence = ANY ($1::bigint[])
-- statement change
WITH mine AS (
    SELECT run.*, t.kind, t.payload, t.due, t.max_attempts, t.time_limit_ms
    FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::timestamptz[], $5::float8[], $6::text[],
        $7::integer[], $8::text[])
        AS run (id, fence, new_state, new_due, gap_ms, new_error, new_attempts, new_key)
    JOIN tickwheel_timers t ON t.id = run.id AND t.fence = run.fence AND t.state = 'running'
    FOR UPDATE OF t SKIP LOCKED)
UPDATE tickwheel_timers t SET
    state = mine.new_state,
    due = coalesce(mine.new_due, t.due),
    held_until = CASE WHEN mine.new_state = 'dead' THEN 'infinity'
        WHEN mine.new_due IS NULL THEN tickwheel_now() + mine.gap_ms * interval '1 millisecond' END,
    attempts = CASE WHEN mine.new_due IS NULL THEN mine.new_attempts ELSE 0 END,
    fence = CASE WHEN mine.new_state = 'waiting' AND mine.new_due IS NULL AND mine.gap_ms IS NULL
        THEN 0 ELSE t.fence END,
    owner = NULL,
    error = mine.new_error
FROM mine WHERE t.id = mine.id RETURNING mine.fence
-- statement done
WITH mine AS (SELECT t.id FROM (VALUES ($1::bigint, $2::bigint)) AS run (id, fence)
    JOIN tickwheel_timers t ON t.id = run.id AND t.fence = run.fence AND t.state = 'running'
    FOR UPDATE OF t SKIP LOCKED)
DELETE FROM tickwheel_timers t USING mine WHERE t.id = mine.id RETURNING t.fence
