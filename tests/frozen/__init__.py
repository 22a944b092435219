"""What users hold and may not change unseen: names, keys, bits, programs."""
