"""Report: tables, figures and a page, made from records alone. Never imports torch."""
