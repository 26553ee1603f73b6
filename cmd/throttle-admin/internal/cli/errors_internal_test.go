package cli

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestWithoutPasswords(t *testing.T) {
	long := strings.Repeat("s3cret", 50)
	for text, want := range map[string]string{
		"":                         "",
		"open redis://a:1: no":     "open redis://a:1: no",
		`"etcd://a:1,b:2/t?ca=x"`:  `"etcd://a:1,b:2/t?ca=x"`,
		"set redis://host:port":    "set redis://host:port",
		"kafka://a/b/c: x@y":       "kafka://a/b/c: x@y",
		"at redis://[::1]:6379, x": "at redis://[::1]:6379, x",
		"serving http://1.2.3.4:9402/reports, see https://e.org.": "serving http://1.2.3.4:9402/reports, see https://e.org.",

		"open redis://:pw@a:1: no":                              "open redis://***@a:1: no",
		"open etcd://root:p w@a/t: no":                          "open etcd://***@a/t: no",
		"open etcd://root:p@ w@a, b://c:1 d":                    "open etcd://***@a, b://c:1 d",
		"etcd://root:1/2@a":                                     "etcd://***@a",
		`"etcd://root:p w@a": want b`:                           `"etcd://***": want b`,
		`"etcd://root:p\"w@a": want b`:                          `"etcd://***": want b`,
		fmt.Sprintf("%.200q: no", "etcd://root:"+long+"@h/t"):   `"etcd://***": no`,
		fmt.Sprintf("%.200q: no", "etcd://root:1 "+long+"@h/t"): `"etcd://***": no`,
		fmt.Sprintf("%.200q: no", "etcd://r:a@"+long+"@h/t"):    `"etcd://***": no`,
		fmt.Sprintf("%.200q: no", "redis://:"+long+"@h/t"):      `"redis://***": no`,
	} {
		assert.Equal(t, want, withoutPasswords(text))
	}
}
