-- Version 6. Limits of kinds, over all processes.
-- Tables of another version than 5 get none, which the column does not allow. So this file runs once, and in its turn.
UPDATE tickwheel_schema SET version = CASE version WHEN 5 THEN 6 END;

-- The bucket of a kind's rate.
CREATE TABLE tickwheel_limits (kind TEXT PRIMARY KEY, tokens REAL NOT NULL, filled INTEGER NOT NULL) STRICT;
-- What was claimed with limits, until its worker lets it go or the lease of the hold ends.
CREATE TABLE tickwheel_holds (fence INTEGER PRIMARY KEY, kind TEXT NOT NULL, of_group TEXT, until INTEGER NOT NULL) STRICT;
CREATE INDEX tickwheel_holds_kind ON tickwheel_holds (kind, of_group);
