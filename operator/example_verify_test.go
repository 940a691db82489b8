package operator_test

import (
	"context"
	"fmt"

	"github.com/posthaste-dev/posthaste/operator"
)

// How do I know that nobody has edited the audit? Verify it every day, and keep the
// head of the chain where people who can change the database cannot write.
func ExampleOperator_VerifyAudit() {
	daily := func(ctx context.Context, o *operator.Operator, yesterday string, note func(head string) error) error {
		noted, err := operator.ParseAuditHead(yesterday)
		if err != nil {
			return err
		}
		check, err := o.VerifyAudit(ctx, noted)
		if err != nil {
			return err
		}
		if check.Broken > 0 {
			return fmt.Errorf("the audit is not what was recorded: %v", check.Breaks)
		}
		return note(check.Head.String())
	}
	_ = daily
}
