-- Version 6. Limits of kinds, over all processes: how many run at the same time, how many start in a time, and one at a time of
-- each group.
--
-- Whatever is claimed with limits has a row in `tickwheel_holds`, until its worker lets it go or the lease of the hold ends. The
-- timers have no column for that, and kinds without limits no row. Workers of an earlier version know no limits.
DO $$ BEGIN
    IF (SELECT version FROM tickwheel_schema FOR UPDATE) IS DISTINCT FROM 5 THEN
        RAISE 'this file brings tables of version 5 up to date, and these are of another' USING HINT =
            'Run the files that come after the version in `tickwheel_schema`, once each in their order.';
    END IF;
END $$;

-- A claim of a kind with limits holds the lock of the kind's row until it commits. The row is also the bucket of its rate.
CREATE TABLE tickwheel_limits (
    kind text PRIMARY KEY,
    -- NULL: no worker with a rate has claimed yet, so the bucket is full.
    tokens double precision,
    filled timestamptz NOT NULL
) WITH (fillfactor = 50);
CREATE TABLE tickwheel_holds (
    fence bigint PRIMARY KEY,
    kind text NOT NULL,
    of_group text COLLATE "C",
    until timestamptz NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
CREATE INDEX tickwheel_holds_kind ON tickwheel_holds (kind, of_group);

-- Claims timers of a kind with limits. It is one statement for the client, so that a process that is halted holds no lock; and
-- several for the server, because what others have committed before the lock was free is seen by the next statement alone.
CREATE FUNCTION tickwheel_claim(of_kind text, wanted integer, by_owner text, lease interval, most_bytes bigint,
    floor_wake timestamptz, floor_id bigint, most integer, starts integer, per interval, separator text, excepted text[],
    look_at integer, pause interval, version integer)
RETURNS TABLE (clock timestamptz, more boolean, next timestamptz, held_back timestamptz, reached_wake timestamptz, reached_id bigint,
    passed_groups text[], passed_wakes timestamptz[], passed_ids bigint[], ids bigint[], wakes timestamptz[], befores text[],
    timers tickwheel_timers[])
ROWS 1 LANGUAGE plpgsql SET search_path FROM CURRENT SET plan_cache_mode TO force_custom_plan SET jit TO off
-- When the server has not counted the rows yet, it would sort all that is due, for each claim.
SET enable_bitmapscan TO off AS $$
#variable_conflict use_column
DECLARE
    bucket tickwheel_limits;
    available double precision;
    room integer := wanted;
    width integer;
    found integer;
    heads integer;
    chosen bigint[];
BEGIN
    clock := tickwheel_now();
    more := false;
    -- By its number, because the table has a column of that name.
    IF (SELECT s.oldest > $15 FROM tickwheel_schema s) THEN
        RETURN NEXT;
        RETURN;
    END IF;
    SELECT l.* INTO bucket FROM tickwheel_limits l WHERE l.kind = $1 FOR UPDATE SKIP LOCKED;
    IF bucket.kind IS NULL THEN
        -- Another worker claims, or nobody ever has.
        INSERT INTO tickwheel_limits (kind, filled) VALUES ($1, clock) ON CONFLICT DO NOTHING;
        held_back := clock + interval '2 milliseconds';
        RETURN NEXT;
        RETURN;
    END IF;
    clock := tickwheel_now();
    IF starts IS NOT NULL THEN
        available := least(starts, coalesce(bucket.tokens, starts)
            + greatest(extract(epoch FROM clock - bucket.filled)::float8, 0) * starts / extract(epoch FROM per)::float8);
        room := least(room, floor(available)::integer);
    END IF;
    -- A hold that somebody extends or removes at this moment counts.
    DELETE FROM tickwheel_holds h WHERE h.fence IN (
        SELECT old.fence FROM tickwheel_holds old WHERE old.kind = $1 AND old.until <= clock FOR UPDATE SKIP LOCKED);
    IF most IS NOT NULL THEN
        room := least(room, most - (SELECT count(*)::integer FROM tickwheel_holds h WHERE h.kind = $1));
    END IF;
    IF room > 0 THEN
        width := CASE WHEN separator IS NULL THEN room ELSE look_at END;
        -- Without groups, what somebody else has locked is passed over at once, so that it takes no room of others. With groups, all
        -- that is in sight is looked at, and what is taken is locked below.
        WITH single AS MATERIALIZED (
            SELECT t.* FROM tickwheel_timers t
            WHERE t.kind = $1 AND t.wake <= clock AND separator IS NULL
                AND (t.wake, t.id) > (coalesce(floor_wake, '-infinity'), coalesce(floor_id, 0))
            ORDER BY t.wake, t.id LIMIT width FOR UPDATE SKIP LOCKED),
        in_sight AS MATERIALIZED (
            SELECT t.* FROM tickwheel_timers t
            WHERE t.kind = $1 AND t.wake <= clock AND separator IS NOT NULL
                AND (t.wake, t.id) > (coalesce(floor_wake, '-infinity'), coalesce(floor_id, 0))
            ORDER BY t.wake, t.id LIMIT width),
        due AS MATERIALIZED (
            SELECT t.id, t.wake, t.state, octet_length(t.payload) AS bytes, split_part(t.key, separator, 1) COLLATE "C" AS grp
            FROM (SELECT * FROM single UNION ALL SELECT * FROM in_sight) t),
        -- The first of each group that is not held. Without groups, each timer is by itself.
        heads AS MATERIALIZED (
            SELECT DISTINCT ON (grp, CASE WHEN grp IS NULL THEN id END) due.* FROM due
            WHERE grp IS NULL OR grp <> ALL (excepted) AND grp NOT IN (
                SELECT h.of_group FROM tickwheel_holds h WHERE h.kind = $1 AND h.of_group IS NOT NULL)
            ORDER BY grp, CASE WHEN grp IS NULL THEN id END, wake, id),
        ranked AS (
            SELECT heads.*, row_number() OVER in_order AS rank, bool_or(state = 'running') OVER in_order AS is_suspected,
                sum(heads.bytes) OVER in_order AS all_bytes
            FROM heads WINDOW in_order AS (ORDER BY wake, id)),
        taken AS MATERIALIZED (
            SELECT * FROM ranked WHERE rank <= room AND (rank = 1 OR NOT is_suspected AND all_bytes <= most_bytes)),
        -- Of each group that is held or taken from, the first that waits.
        passed AS MATERIALIZED (
            SELECT DISTINCT ON (grp) grp, wake, id FROM due
            WHERE grp IS NOT NULL AND id NOT IN (SELECT taken.id FROM taken) AND (grp IN (SELECT taken.grp FROM taken)
                OR grp IN (SELECT h.of_group FROM tickwheel_holds h WHERE h.kind = $1 AND h.of_group IS NOT NULL))
            ORDER BY grp, wake, id)
        SELECT (SELECT count(*) FROM due), (SELECT count(*) FROM heads),
            (SELECT array_agg(taken.id ORDER BY taken.wake, taken.id) FROM taken), last.wake, last.id,
            (SELECT array_agg(passed.grp::text ORDER BY passed.grp) FROM passed),
            (SELECT array_agg(passed.wake ORDER BY passed.grp) FROM passed),
            (SELECT array_agg(passed.id - 1 ORDER BY passed.grp) FROM passed)
        INTO found, heads, chosen, reached_wake, reached_id, passed_groups, passed_wakes, passed_ids
        FROM (VALUES (1)) one LEFT JOIN LATERAL (
            -- If some are left for want of room, the next claim begins behind the last one that was taken.
            SELECT due.wake, due.id FROM due
            WHERE (SELECT count(*) FROM heads) <= (SELECT count(*) FROM taken) OR due.id IN (SELECT taken.id FROM taken)
            ORDER BY due.wake DESC, due.id DESC LIMIT 1) last ON true;
        more := found = width OR heads > coalesce(cardinality(chosen), 0);
        -- A timer that somebody else has locked, or has changed since, is left out.
        SELECT array_agg(l.id ORDER BY l.wake, l.id), array_agg(l.wake ORDER BY l.wake, l.id), array_agg(l.state ORDER BY l.wake, l.id)
        INTO ids, wakes, befores FROM (
            SELECT t.id, t.wake, t.state FROM tickwheel_timers t
            WHERE t.id = ANY (chosen) AND t.kind = $1 AND t.wake <= clock FOR UPDATE SKIP LOCKED) l;
        WITH taken AS (
            UPDATE tickwheel_timers t SET
                state = 'running',
                -- With random bits, because a replica that takes the server's place may give a number again (STORE-2).
                fence = nextval('tickwheel_fence') * 1048576 + floor(random() * 1048576)::bigint,
                owner = by_owner,
                held_until = tickwheel_now() + lease,
                error = CASE WHEN t.state = 'running' THEN 'the lease of worker ' || coalesce(t.owner, 'unknown')
                    || ' ended: it died, hung, or lost the database' ELSE t.error END
            WHERE t.id = ANY (ids) RETURNING t AS timer),
        held AS (
            INSERT INTO tickwheel_holds (fence, kind, of_group, until)
            SELECT (timer).fence, $1, split_part((timer).key, separator, 1), (timer).held_until FROM taken)
        SELECT array_agg(timer) INTO timers FROM taken;
    END IF;
    -- What there is room for may be less than what is due.
    IF room <= coalesce(cardinality(ids), 0) AND room < wanted AND (room > 0 OR EXISTS (
        SELECT FROM tickwheel_timers t WHERE t.kind = $1 AND t.wake <= clock
            AND (t.wake, t.id) > (coalesce(floor_wake, '-infinity'), coalesce(floor_id, 0))))
    THEN
        held_back := clock + pause;
    END IF;
    IF starts IS NOT NULL THEN
        available := available - coalesce(cardinality(ids), 0);
        IF held_back IS NOT NULL AND available < 1 THEN
            held_back := clock + per * (1 - available) / starts;
        END IF;
        UPDATE tickwheel_limits SET tokens = available, filled = clock WHERE kind = $1;
    END IF;
    IF NOT more AND held_back IS NULL THEN
        SELECT t.wake INTO next FROM tickwheel_timers t
        WHERE t.kind = $1 AND t.wake > clock AND t.wake < 'infinity' AND t.state = 'waiting' ORDER BY t.wake LIMIT 1;
    END IF;
    RETURN NEXT;
END $$;

UPDATE tickwheel_schema SET version = 6;
