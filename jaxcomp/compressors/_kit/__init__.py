"""What compressors share: segments, selection, sparse payloads, rotations."""
