"""The pages that users open in a browser: one base template, style sheet, script, set of charts."""
