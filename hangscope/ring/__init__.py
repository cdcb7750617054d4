"""The ring file both sides share: layout, writer, reader. No torch, no pandas."""
