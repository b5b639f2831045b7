-- Version 5. The workers that live, so that each timer is claimed by one of them when it is due, and not by all.
--
-- Workers of an earlier version are not in the list, and go on claiming whatever is due.
DO $$ BEGIN
    IF (SELECT version FROM tickwheel_schema FOR UPDATE) IS DISTINCT FROM 4 THEN
        RAISE 'this file brings tables of version 4 up to date, and these are of another' USING HINT =
            'Run the files that come after the version in `tickwheel_schema`, once each in their order.';
    END IF;
END $$;

-- A worker lives until this time, unless its session has ended before. After a crash of the server the list is empty, and all
-- of them write themselves into it again.
CREATE UNLOGGED TABLE tickwheel_workers (
    worker bigint PRIMARY KEY,
    name text NOT NULL,
    kinds text[] NOT NULL,
    until timestamptz NOT NULL,
    -- The number of the server's process for its connection (`pg_backend_pid()`).
    session integer NOT NULL
) WITH (fillfactor = 50);

UPDATE tickwheel_schema SET version = 5;
