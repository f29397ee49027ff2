package shop

import shop.tax.Rates
import kotlin.math.*

enum class Kind { A, B }

object Registry {
    fun find(id: Int) = id
}

class Cart(private val sum: Int) : Base(sum), Priced {
    override fun total(): Int {
        return roundUp(sum) + Rates.of(this) + super.total() + this.extra()
    }
    companion object {
        fun make() = Cart(1)
    }
}

fun roundUp(x: Int): Int = helper.ceil(x)
fun String.shout(): String = uppercase()
typealias Cents = Int
