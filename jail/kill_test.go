package jail_test

const supervisorEnv = "JAIL_TEST_SUPERVISOR"

func runSupervisor() {}
