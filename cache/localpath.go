package cache

// Path returns where the inode's local file is, or will be. Whoever opens it
// for reading must have pinned what is read and must know that it is present.
func (f *File) Path() string { return f.path() }
