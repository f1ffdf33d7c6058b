"""The page: what runs and audits measured, as one self-contained HTML file that draws itself."""
