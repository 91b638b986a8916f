"""The screen: app, screens, widgets, themes."""
