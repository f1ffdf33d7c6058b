"""Files: images, archives and downloads."""
