-- Version 5. It is about the workers of PostgreSQL. A version is the same for all databases, so here is nothing new.
-- Tables of another version than 4 get none, which the column does not allow. So this file runs once, and in its turn.
UPDATE tickwheel_schema SET version = CASE version WHEN 4 THEN 5 END;
