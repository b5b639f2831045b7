-- Version 1. Timers of the crate tickwheel. A version is a file, and these files are run in their order.
-- All times are milliseconds since 1970, in UTC.
CREATE TABLE IF NOT EXISTS tickwheel_schema (version INTEGER NOT NULL, oldest INTEGER NOT NULL, fence INTEGER NOT NULL DEFAULT 0);
INSERT INTO tickwheel_schema (version, oldest) SELECT 1, 1 WHERE NOT EXISTS (SELECT 1 FROM tickwheel_schema);
CREATE TABLE tickwheel_timers (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    kind TEXT NOT NULL CHECK (kind <> ''),
    key TEXT NOT NULL,
    payload ANY NOT NULL DEFAULT x'',
    due INTEGER NOT NULL,
    period_ms INTEGER CHECK (period_ms > 0),
    rule TEXT,
    max_attempts INTEGER CHECK (max_attempts > 0),
    time_limit_ms INTEGER CHECK (time_limit_ms > 0),
    -- What follows is the workers': leave it to its defaults.
    state TEXT NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'running', 'dead')),
    attempts INTEGER NOT NULL DEFAULT 0,
    fence INTEGER NOT NULL DEFAULT 0,
    held_until INTEGER,
    owner TEXT,
    error TEXT,
    wake INTEGER GENERATED ALWAYS AS (coalesce(held_until, due)) VIRTUAL,
    -- A constraint's name is in the message about a row that breaks it.
    CONSTRAINT "period_ms or rule, not both" CHECK (period_ms IS NULL OR rule IS NULL),
    CONSTRAINT "with state = 'dead' set held_until = 9223372036854775807" CHECK (state <> 'dead' OR held_until IS 9223372036854775807),
    UNIQUE (kind, key)
) STRICT;
CREATE INDEX tickwheel_timers_wake ON tickwheel_timers (kind, wake, id);
