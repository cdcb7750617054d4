"""What ranks did differently: other operations, sizes, groups, worlds."""
