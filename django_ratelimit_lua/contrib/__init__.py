"""Optional Django apps inside the package. Each plugs into the core by its `Extension`."""
