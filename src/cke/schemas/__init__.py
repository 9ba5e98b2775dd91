"""One struct module per on-disk format: the only place where a wire name is spelled."""
