package overlay

import (
	"errors"
	"fmt"

	"stage/fs/tree"
)

// AttrXattr is the extended attribute that holds the logical attributes of an upper file or
// directory whose real ones had to differ, since a server that is not root must be able to use it.
const AttrXattr = "user.stage.attr"

// ErrAttr is the cause of every error of DecodeAttr.
var ErrAttr = errors.New("not a stage attribute")

// EncodeAttr writes mode and owner as the value of AttrXattr: "v1 <octal mode> <uid> <gid>".
func EncodeAttr(mode tree.Mode, uid, gid uint32) []byte {
	return fmt.Appendf(nil, "v1 %04o %d %d", uint32(mode), uid, gid)
}

// DecodeAttr reads what EncodeAttr writes and refuses everything else.
func DecodeAttr(value []byte) (mode tree.Mode, uid, gid uint32, err error) {
	var m uint32
	if n, err := fmt.Sscanf(string(value), "v1 %o %d %d", &m, &uid, &gid); err != nil || n != 3 || m > 0o7777 {
		return 0, 0, 0, fmt.Errorf("decode %q: %w", value, ErrAttr)
	}
	return tree.Mode(m), uid, gid, nil
}
