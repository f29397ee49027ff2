package shop
import shop.tax.Rates
import scala.collection.mutable.{Map, Set => S}
import java.util._

trait Priced { def total: Int }
case class Money(cents: Int)
object Registry { def find(id: Int): Int = id }
class Cart(sum: Int) extends Base(sum) with Priced {
  override def total: Int = roundUp(sum) + Rates.of(this) + super.total()
  def roundUp(x: Int): Int = helper.ceil(x)
  val m = new Money(1)
  private def go[A](a: A): Unit = this.roundUp(2)
}
enum Kind { case A, B }
type Cents = Int
def top(x: Int): Int = x
