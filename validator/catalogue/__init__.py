"""The faults, as data; `cke.validator.entries` reads them."""
