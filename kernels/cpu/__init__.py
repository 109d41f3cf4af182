"""The whole step of a quantised model in one native call: C++ sources, the compiler that builds them, their twin."""
