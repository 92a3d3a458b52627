-- {TEXT} is TEXT in SQLite and TEXT COLLATE "C" in PostgreSQL.

-- No column changes. A head's own note may say from here on what its manifest does not (docs/formats/volume.md), and programs that know
-- version 3 would go by the manifest alone.
