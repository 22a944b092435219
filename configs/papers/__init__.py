"""Published experiments at their full size; none of them was run here."""
