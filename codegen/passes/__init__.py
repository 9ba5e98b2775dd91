"""IR to IR: one file, one public function each; every level is verified after every pass."""
