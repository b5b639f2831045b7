-- The statements that a program of this crate sends whose tables are of version 2.
-- statement schedule
INSERT INTO tickwheel_timers AS t (kind, key, payload, due, period_ms, rule, max_attempts, time_limit_ms)
SELECT kind, key, payload, coalesce(at::timestamptz, least(tickwheel_now() + after_ms::float8 * interval '1 millisecond', '9998-12-31 00:00Z')), period_ms, rule, max_attempts, time_limit_ms
FROM unnest($1::text[], $2::text[], $3::bytea[], $4::timestamptz[], $5::float8[], $6::bigint[],
    $7::text[], $8::integer[], $9::bigint[])
    AS new (kind, key, payload, at, after_ms, period_ms, rule, max_attempts, time_limit_ms)
ON CONFLICT (kind, key) DO UPDATE SET payload = excluded.payload, due = excluded.due, period_ms = excluded.period_ms,
    rule = excluded.rule, max_attempts = excluded.max_attempts, time_limit_ms = excluded.time_limit_ms,
    state = 'waiting', attempts = 0, fence = 0, held_until = NULL, owner = NULL, error = NULL
RETURNING kind, key, due, t.xmax::text <> '0'
-- statement insert
INSERT INTO tickwheel_timers (kind, key, due) VALUES ('later', $1, now() + interval '1 hour')
-- statement reset
UPDATE tickwheel_timers SET held_until = NULL, attempts = 0, error = NULL, due = coalesce($3::timestamptz, least(tickwheel_now() + $4::float8 * interval '1 millisecond', '9998-12-31 00:00Z'))
WHERE kind = $1 AND key = $2 AND state = 'waiting' RETURNING due
-- statement cancel
DELETE FROM tickwheel_timers WHERE kind = $1 AND key = $2 RETURNING state
-- statement look
SELECT tickwheel_now(), schema.oldest, found.position, found.wake
FROM tickwheel_schema schema LEFT JOIN (
    SELECT k.position, w.wake FROM unnest($1::text[]) WITH ORDINALITY AS k (kind, position)
    CROSS JOIN LATERAL (
        SELECT wake FROM tickwheel_timers t
        WHERE t.kind = k.kind
            AND wake <= (SELECT tickwheel_now() + $2::float8 * interval '1 millisecond')
        ORDER BY wake LIMIT $3) w) found ON true
ORDER BY found.position, found.wake
-- statement claim
WITH clock AS MATERIALIZED (SELECT tickwheel_now() AS now, oldest FROM tickwheel_schema),
due AS (
    SELECT id, wake, state, octet_length(payload) AS bytes FROM tickwheel_timers
    WHERE kind = $1 AND wake <= (SELECT now FROM clock) AND (SELECT oldest FROM clock) <= $5
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
        fence = nextval('tickwheel_fence'),
        owner = $3,
        held_until = tickwheel_now() + $4::float8 * interval '1 millisecond',
        error = CASE WHEN chosen.state = 'running' THEN 'the lease of worker ' || coalesce(t.owner, 'unknown')
            || ' ended: it died, hung, or lost the database' ELSE t.error END
    FROM chosen WHERE t.id = chosen.id
    RETURNING t.id, t.kind, t.key, t.payload, t.due, nullif(t.wake, 'infinity') AS wakes, t.period_ms, t.rule, t.max_attempts, t.time_limit_ms, t.state, t.attempts, t.fence, t.owner, t.error, chosen.wake AS woke, chosen.state AS before)
SELECT clock.now, clock.oldest, counted.chosen < counted.due OR counted.due = $2 AS more,
    CASE WHEN counted.chosen = counted.due AND counted.due < $2 THEN (SELECT wake FROM tickwheel_timers
        WHERE kind = $1 AND wake > (SELECT now FROM clock) AND wake < 'infinity' AND state = 'waiting'
        ORDER BY wake LIMIT 1) END AS next,
    taken.*
FROM clock CROSS JOIN counted LEFT JOIN taken ON true ORDER BY taken.woke, taken.id
-- statement extend
WITH mine AS (SELECT t.id FROM unnest($1::bigint[], $2::bigint[]) AS run (id, fence)
    JOIN tickwheel_timers t ON t.id = run.id AND t.fence = run.fence AND t.state = 'running'
    FOR UPDATE OF t SKIP LOCKED)
UPDATE tickwheel_timers t SET held_until = tickwheel_now() + $3::float8 * interval '1 millisecond'
FROM mine WHERE t.id = mine.id RETURNING t.fence
-- statement change
WITH mine AS (
            SELECT run.*, t.kind, t.payload, t.due, t.max_attempts, t.time_limit_ms
            FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::timestamptz[], $5::float8[], $6::text[],
                $7::integer[], $8::text[])
                AS run (id, fence, new_state, new_due, gap_ms, new_error, new_attempts, new_key) JOIN tickwheel_timers t ON t.id = run.id AND t.fence = run.fence AND t.state = 'running'
FOR UPDATE OF t SKIP LOCKED) UPDATE tickwheel_timers t SET
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
