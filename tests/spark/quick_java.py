"""A Java that does not live long: it need not compile well what it runs a few times. Saves a third of its CPU."""

QUICK_JAVA = {"spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
