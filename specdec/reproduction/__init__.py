"""The paper's tables and figures, and plans for devices that need not be there."""
