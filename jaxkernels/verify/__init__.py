"""Problems drawn at random, run and held to float64: `python -m jaxkernels.verify --help`."""
