-- {TEXT} is TEXT in SQLite and TEXT COLLATE "C" in PostgreSQL.

-- What whoever duplicated a head had to say of it.
ALTER TABLE heads ADD COLUMN note {TEXT} NOT NULL DEFAULT '';
