package permits

import "fmt"

// Bounds of the records that PermitStore.Publish keeps, and of rows.
const (
	// MaxRecord is the size of the largest record, in bytes.
	MaxRecord = 1 << 20

	// MaxRecords is how many records of one cluster PermitStore.Published returns at most.
	MaxRecords = 20_000

	// MaxRecordsBytes is how many bytes these records have in all. A record that does not fit is left
	// out, so that there are more than MaxRecordsBytes - MaxRecord bytes of others.
	MaxRecordsBytes = 64 << 20

	// RowsPage is how many rows one call of PermitStore.Rows or PermitStore.SetRows may have.
	RowsPage = 1000

	// RecordsPage is how many records a permit store reads at once, if they have no more than
	// RecordsPageBytes. A record that is larger is read by itself.
	RecordsPage      = 1000
	RecordsPageBytes = 1 << 20
)

// CheckRecord returns why a record is too large to be published; nil if it is not.
func CheckRecord(record []byte) error {
	if len(record) > MaxRecord {
		return fmt.Errorf("permits: a record of %d bytes is too large to be published: "+
			"want %d or less", len(record), MaxRecord)
	}
	return nil
}
