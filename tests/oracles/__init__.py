"""The same inputs through other people's packages. `make oracles` installs them."""
