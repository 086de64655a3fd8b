"""The halves that read rows: rows → table and plot. They import no torch."""
