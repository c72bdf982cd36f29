package jail

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// order is what the supervisor tells the holder and the shim, once, in a sealed memory file.
type order struct {
	Config wireConfig
	Host   hostFacts
	Size   windowSize // Config.TTY only
	// Streams say how the shim comes by the command's standard streams.
	Streams [3]stream
	// KeepStderr leaves standard error where it is although the command gets a pty: it was no terminal.
	KeepStderr bool
	Trace      bool // collect steps
}

// hostFacts are what the shim compares its own world with.
type hostFacts struct {
	Namespaces map[string]uint64 // inode by name in /proc/self/ns
	Home       fileID            // the host's $HOME
	Pid        int               // of the supervisor
	Abstract   string            // an abstract unix socket on which the supervisor listens
	Sockets    []bytesText       // paths on which host processes listen
	Reachable  []bytesText       // such paths in what is shared with the command
}

type fileID struct{ Dev, Ino uint64 }

type windowSize struct{ Rows, Cols uint16 }

// holderFacts are what the holder adds, on the shim's command line.
type holderFacts struct {
	MountNamespace uint64   `json:"mnt"`
	Unsealed       []string `json:"unsealed,omitempty"` // readable directories whose sockets can be connected
	Absent         []int    `json:"absent,omitempty"`   // indexes of optional mounts that were left out
	Links          []int    `json:"links,omitempty"`    // indexes of mounts that became symbolic links
}

// bytesText is a string that JSON carries byte for byte: paths and arguments need not be UTF-8.
type bytesText string

func (b bytesText) MarshalText() ([]byte, error) {
	return base64.StdEncoding.AppendEncode(nil, []byte(b)), nil
}

func (b *bytesText) UnmarshalText(text []byte) error {
	raw, err := base64.StdEncoding.AppendDecode(nil, text)
	*b = bytesText(raw)
	return err
}

// wireConfig is Config without files and with strings that survive JSON.
type wireConfig struct {
	Exe         bytesText
	Mode        Mode
	UID, GID    uint32
	Hostname    bytesText
	Views       []wireView
	Mounts      []wireMount
	Net         Network
	Listeners   []string
	AllowUserns bool
	Argv, Env   []bytesText
	Cwd         bytesText
	TTY         bool
	Nofile      uint64
	NofileSet   bool
	WorkDir     bytesText
	Skip        string
}

type wireView struct{ Name, Dest, Options bytesText }

type wireMount struct {
	Source, Dest       bytesText
	Kind               Kind
	ReadOnly, Optional bool
	Mode               os.FileMode
	Size               uint64
}

func (c Config) wire() wireConfig {
	w := wireConfig{
		Exe: bytesText(c.Exe), Mode: c.Mode, UID: c.UID, GID: c.GID, Hostname: bytesText(c.Hostname),
		Net: c.Net, Listeners: c.Listeners, AllowUserns: c.AllowUserns,
		Argv: texts(c.Argv), Env: texts(c.Env), Cwd: bytesText(c.Cwd), TTY: c.TTY,
		Nofile: c.Nofile, NofileSet: c.NofileSet, WorkDir: bytesText(c.WorkDir), Skip: c.Skip,
	}
	for _, v := range c.Views {
		w.Views = append(w.Views, wireView{bytesText(v.Name), bytesText(v.Dest), bytesText(v.Options)})
	}
	for _, m := range c.Mounts {
		w.Mounts = append(w.Mounts, wireMount{bytesText(m.Source), bytesText(m.Dest), m.Kind, m.ReadOnly, m.Optional, m.Mode, m.Size})
	}
	return w
}

func (w wireConfig) config() Config {
	c := Config{
		Exe: string(w.Exe), Mode: w.Mode, UID: w.UID, GID: w.GID, Hostname: string(w.Hostname),
		Net: w.Net, Listeners: w.Listeners, AllowUserns: w.AllowUserns,
		Argv: strs(w.Argv), Env: strs(w.Env), Cwd: string(w.Cwd), TTY: w.TTY,
		Nofile: w.Nofile, NofileSet: w.NofileSet, WorkDir: string(w.WorkDir), Skip: w.Skip,
	}
	for _, v := range w.Views {
		c.Views = append(c.Views, View{string(v.Name), string(v.Dest), string(v.Options)})
	}
	for _, m := range w.Mounts {
		c.Mounts = append(c.Mounts, Mount{string(m.Source), string(m.Dest), m.Kind, m.ReadOnly, m.Optional, m.Mode, m.Size})
	}
	return c
}

func texts(in []string) []bytesText {
	var out []bytesText
	for _, s := range in {
		out = append(out, bytesText(s))
	}
	return out
}

func strs(in []bytesText) []string {
	var out []string
	for _, s := range in {
		out = append(out, string(s))
	}
	return out
}

// file writes o into memory that nobody can change any more.
func (o order) file() (*os.File, error) {
	data, err := json.Marshal(o)
	if err != nil {
		return nil, fmt.Errorf("encode jail order: %w", err)
	}
	fd, err := unix.MemfdCreate("stage-order", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("create memory file: %w", err)
	}
	f := os.NewFile(uintptr(fd), "jail order")
	if _, err := f.Write(data); err != nil {
		f.Close()
		return nil, fmt.Errorf("write jail order: %w", err)
	}
	const seals = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		f.Close()
		return nil, fmt.Errorf("seal jail order: %w", err)
	}
	return f, nil
}

// readOrder reads at offsets of its own: holder and shim share the file's position.
func readOrder(f *os.File) (order, error) {
	info, err := f.Stat()
	if err != nil {
		return order{}, fmt.Errorf("read jail order: %w", err)
	}
	data := make([]byte, info.Size())
	if _, err := io.ReadFull(io.NewSectionReader(f, 0, info.Size()), data); err != nil {
		return order{}, fmt.Errorf("read jail order: %w", err)
	}
	var o order
	if err := json.Unmarshal(data, &o); err != nil {
		return order{}, fmt.Errorf("decode jail order: %w", err)
	}
	return o, nil
}

// namespaces returns the inode of each namespace of the calling process.
func namespaces() (map[string]uint64, error) {
	ids := make(map[string]uint64)
	for _, name := range []string{"pid", "user", "mnt", "ipc", "uts", "net"} {
		var st syscall.Stat_t
		if err := syscall.Stat("/proc/self/ns/"+name, &st); err != nil {
			return nil, fmt.Errorf("identify %s namespace: %w", name, err)
		}
		ids[name] = st.Ino
	}
	return ids, nil
}
