-- Version 5. What is dead wakes never, so the index finds it among many timers that wait.
LOCK TABLE tickwheel_schema, tickwheel_timers;
DO $$ BEGIN
    IF (SELECT version FROM tickwheel_schema) IS DISTINCT FROM 4 THEN
        RAISE 'this file brings tables of version 4 up to date, and these are of another' USING HINT =
            'Run the files that come after the version in `tickwheel_schema`, once each in their order.';
    END IF;
END $$;
CREATE OR REPLACE FUNCTION tickwheel_requeue(kind text, key text DEFAULT NULL, at timestamptz DEFAULT NULL, after interval DEFAULT NULL)
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

UPDATE tickwheel_schema SET version = 5;
