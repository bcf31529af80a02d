"""Charts: any of the run's metrics, with one crosshair and one range for all."""
