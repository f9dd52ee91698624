"""The bottom of the package: the spec tables, error rows, units, ids and clocks that everything stands on."""
