-- What a device is called, for its own user: the computer and the workspace's folder.
ALTER TABLE devices ADD COLUMN computer text COLLATE "C";
ALTER TABLE devices ADD COLUMN workspace text COLLATE "C";
