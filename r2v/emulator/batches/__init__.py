"""Provider batches of the emulator: lifecycle, polling, results and downloads."""
