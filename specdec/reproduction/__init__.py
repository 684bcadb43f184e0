"""The paper's tables and figures, and plans for devices that are not at hand."""
