"""Plans of whole models, saved and executed on netlab hosts: ByteComp's, COVAP's, and lists of phases."""
