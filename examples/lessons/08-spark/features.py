"""An event table becomes one row of features a user, and MLlib's trees learn from them who buys."""

import re
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.ml import Pipeline
from pyspark.ml.classification import GBTClassifier, RandomForestClassifier
from pyspark.ml.evaluation import BinaryClassificationEvaluator
from pyspark.ml.feature import StringIndexer, VectorAssembler
from pyspark.ml.tuning import CrossValidator, ParamGridBuilder
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

USERS, DAYS, CATEGORIES = 6_000, 120, 12
FIRST_DAY, AS_OF = "2026-01-01", "2026-04-01"


def write_events():
    """Views and purchases of 120 days. Users differ in how often they come, what they look at,
    how easily they buy, and when they leave for good. User 0 is a crawler: a quarter of all."""
    random = np.random.default_rng(7)
    leaves = np.minimum(random.exponential(150, USERS), DAYS)
    likes = random.dirichlet(np.full(CATEGORIES, 0.4), USERS).cumsum(axis=1)
    buys = random.beta(1, 25, USERS)
    counts = random.poisson(random.gamma(0.9, 0.7, USERS) * leaves)
    counts[0], buys[0] = counts[1:].sum() // 3, 0
    user = np.repeat(np.arange(USERS), counts)
    drawn = (likes[user] < random.random((len(user), 1))).sum(axis=1)
    is_purchase = random.random(len(user)) < buys[user]
    table = pa.table({
        "event_id": np.arange(len(user)), "user_id": user,
        "event_type": np.where(is_purchase, "purchase", "view"),
        "category": np.minimum(drawn, CATEGORIES - 1),
        "amount": np.where(is_purchase, random.lognormal(3, 1, len(user)).round(2), 0.0),
        "date": np.datetime64(FIRST_DAY) + (random.random(len(user)) * leaves[user]).astype(int),
    }).take(random.permutation(len(user)))  # fmt: skip
    pq.write_table(table, "events.parquet", row_group_size=20_000)


def favorites(rows):
    """Each user's category with the largest count."""
    favorite = F.max_by("category", "count").alias("favorite_category")
    return rows.groupBy("user_id").agg(favorite, F.max("count").alias("most"))


write_events()
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    .config("spark.sql.shuffle.partitions", 2).getOrCreate()
)  # fmt: skip
spark.sparkContext.setLogLevel("ERROR")
events = spark.read.parquet("events.parquet")
purchase, view = F.col("event_type") == "purchase", F.col("event_type") == "view"
print(f"events = {events.count()}")
# What is known on the day AS_OF makes the features, what follows makes the label. A fixed day
# replaces the course's current_date(), by which the features would be others tomorrow.
before = events.where(F.col("date") < F.lit(AS_OF))
users = before.groupBy("user_id").agg(
    F.count("*").alias("total_events"),
    F.countDistinct(F.when(purchase, F.col("event_id"))).alias("total_purchases"),
    F.avg(F.when(purchase, F.col("amount"))).alias("avg_purchase_value"),
    F.datediff(F.lit(AS_OF), F.max(F.when(purchase, F.col("date")))).alias("days_since_purchase"),
    F.collect_set(F.when(view, F.col("category"))).alias("viewed_categories"),
).cache()  # fmt: skip

# The course explodes the SET of viewed categories and counts: each category is in a set once, so
# every count is 1 and max_by takes any of them. The views themselves have to be counted.
exploded = users.select("user_id", F.explode("viewed_categories").alias("category"))
course = exploded.groupBy("user_id", "category").count()
views = before.where(view).groupBy("user_id", "category").count().cache()
print(f"largest count of the course's code = {course.agg(F.max('count')).first()[0]}")
most = favorites(views).select("user_id", "most")
for name, counts in (("the course's code", course), ("views counted", views)):
    chosen = favorites(counts).select("user_id", F.col("favorite_category").alias("category"))
    checked = chosen.join(views, ["user_id", "category"]).join(most, "user_id")
    share = checked.agg(100 * F.avg((F.col("count") == F.col("most")).cast("int"))).first()[0]
    print(f"users with the right favorite category, {name} = {share:.1f} %")
later = events.where((F.col("date") >= F.lit(AS_OF)) & purchase)
buyers = later.groupBy("user_id").agg(F.lit(1).alias("label"))
users = users.join(favorites(views).drop("most"), "user_id", "left").join(buyers, "user_id", "left")
users.fillna({"label": 0}).write.mode("overwrite").parquet("features")
rows = spark.read.parquet("features")
print(f"users with features = {rows.count()}")
# Who buys within the next thirty days? The course's four columns.
columns = ["total_events", "total_purchases", "avg_purchase_value", "days_since_purchase"]
assembler = VectorAssembler(inputCols=columns, outputCol="features")
try:
    assembler.transform(rows).write.format("noop").mode("overwrite").save()
except (Py4JJavaError, PySparkException) as error:
    print("The course's pipeline:", re.search(r"Encountered null.*?(?=\. )", str(error))[0])
print(f"users without a purchase = {rows.where('days_since_purchase is null').count()}")
rows = rows.fillna({"avg_purchase_value": 0, "days_since_purchase": 999})
rows = rows.withColumn("total_purchases", F.col("total_purchases").cast("double"))
train, test = (part.coalesce(2).cache() for part in rows.randomSplit([0.8, 0.2], seed=1))
auc = BinaryClassificationEvaluator(labelCol="indexed_label")
indexer = StringIndexer(inputCol="label", outputCol="indexed_label", stringOrderType="alphabetAsc")
by_one = {auc.rawPredictionCol: "total_purchases", auc.labelCol: "label"}
print(f"AUC of the number of purchases alone = {auc.evaluate(test, by_one):.3f}")
forest = RandomForestClassifier(labelCol="indexed_label", seed=1)
trees = GBTClassifier(labelCol="indexed_label", seed=1)
for name, model, number in (
    ("random forest", forest, forest.numTrees), ("boosted trees", trees, trees.maxIter)
):  # fmt: skip
    grid = ParamGridBuilder().addGrid(model.maxDepth, [2, 5]).addGrid(number, [3, 10]).build()
    pipeline = Pipeline(stages=[assembler, indexer, model])
    search = CrossValidator(
        estimator=pipeline, estimatorParamMaps=grid, evaluator=auc, numFolds=3, parallelism=2
    )
    began = time.perf_counter()
    tuned = search.fit(train)
    print(f"{name}, 13 fits = {time.perf_counter() - began:.1f} s")
    print(f"{name}, AUC of the test users = {auc.evaluate(tuned.transform(test)):.3f}")
spark.stop()
