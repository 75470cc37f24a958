"""Several tasks on one fleet: the study of the thesis, and the use of capacity."""
