"""Parts of configs: each changes a few keys of a whole config that stands before it."""
