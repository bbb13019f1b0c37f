"""Provider batches inside the emulator: their lifecycle, polling, results and downloads."""
