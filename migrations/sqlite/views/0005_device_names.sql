-- What a device is called, for its own user: the computer and the workspace's folder.
ALTER TABLE devices ADD COLUMN computer TEXT;
ALTER TABLE devices ADD COLUMN workspace TEXT;
